"""What an editor asks of a text: its one style, its colours, and what stands at a place.

Stages compile; nothing here changes what a text means.
"""
