"""Opens the runner of a project, and drives its runs: in this process, in the background, or standing by."""
