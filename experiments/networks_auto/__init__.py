"""`auto` on networks, with nothing set, beside public records alone and settings by hand."""
