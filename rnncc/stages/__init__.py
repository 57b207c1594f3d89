"""The stages of the compiler, one public function each; `rnncc.compiler` alone knows their order."""
