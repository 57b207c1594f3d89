"""The nouns of the compiler: immutable values that the stages hand to each other."""
