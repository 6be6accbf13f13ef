"""Options: frozen values that check themselves and know their wire form.

What a user may set lives here and nothing that acts on it: no I/O, no client, and no imports of ours besides
`errors`.
"""
