"""How values of the compiler read: what `rnncc show`, `explain` and `cells` print."""
