"""The stages of the compiler, one public function each; `rnncc.pipeline` alone knows their order."""
