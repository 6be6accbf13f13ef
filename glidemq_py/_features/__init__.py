"""One module or folder per feature: its options, public methods, server calls and worker side."""
