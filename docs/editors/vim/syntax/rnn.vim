" Colours of rnncc's cells. Written by benchmarks/report.py.
if exists("b:current_syntax")
  finish
endif
syntax case match
syntax match rnnOperator "\v[-+*/@<>=!⊙·]|\.\."
syntax match rnnNumber "\v<[0-9]+(\.\.@!)?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?"
syntax match rnnName "\v<[0-9]@!\k+>"
syntax match rnnValue "\v<(inf|pi|π|learned|default|zeros|ones|xavier|xavier_normal|kaiming|orthogonal|eye)>"
syntax match rnnGiven "\v<(W|R|b|bR|x|t|I|H|num_heads)>"
syntax match rnnOwn "\v<[0-9]@!\k+>\ze\s*\("
syntax match rnnFunction "\v<(T|abs|arange|atan|cayley|clamp|concat|constant|cos|cumsum|detach|diag|elu|exp|expm|eye|fast_sigmoid|floor|gelu|hardsigmoid|hardtanh|heads|heaviside|inv|layernorm|leakyrelu|log|log1p|logaddexp|logsigmoid|logsumexp|max|mean|min|mod|norm|normal|normalize|ones|relu|repeat|rmsnorm|roll|round|sigmoid|sign|silu|sin|softmax|softplus|spectral|split|sqrt|sum|tanh|triangular|tril|triu|unflatten|uniform|where|σ)>\ze\s*\("
syntax match rnnType "\v:\s*\zs<(vector|scalar|matrix|diag|blockdiag|sparse|mask|lowrank)>"
syntax match rnnWord "\v<per\s+sequence>"
syntax match rnnControl "\v<(for|if|else|in)>"
syntax match rnnWord "\v<in\s+\zsplace\s+of>"
syntax match rnnStatement "\v(^|;)\s*\zs<(input|state|output|dim|const|local|param|buffer|weights|init)>(\s*[=,[(])@!"
syntax match rnnStatement "\v(^|;)\s*\zs<cell>(\s+\k)@=" nextgroup=rnnCell skipwhite
syntax match rnnStatement "\v(^|;)\s*\zs<def>(\s+\k)@=" nextgroup=rnnOwn skipwhite
syntax match rnnCell "\v<[0-9]@!\k+>" contained
syntax match rnnComment "#.*$"
highlight default link rnnOperator Operator
highlight default link rnnNumber Number
highlight default link rnnValue Constant
highlight default link rnnGiven Identifier
highlight default link rnnOwn Function
highlight default link rnnFunction Function
highlight default link rnnType Type
highlight default link rnnWord Keyword
highlight default link rnnControl Conditional
highlight default link rnnStatement Statement
highlight default link rnnCell Structure
highlight default link rnnComment Comment
let b:current_syntax = "rnn"
