"""The review of plans: what a reader must know before anybody approves them, as a model, Markdown and HTML.

Pure: nothing here prints, asks a cloud or reads a clock, so that the same plans give the same bytes.
"""
