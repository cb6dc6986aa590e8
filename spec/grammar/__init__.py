"""How values read: sizes, ranges, durations, names, GPUs, host addresses, schedules, references."""
