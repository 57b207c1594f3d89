// Elementwise functions of vectors. Each has one name: rnncc::tanh(v) takes Vec<float> and Vec<double>.
//
// They have no branches, so an infrequent case takes no longer. But sin and cos of large arguments, pow and remainder
// go lane by lane through the C library. Errors are at most 2 ulp (float) or 4 ulp (double) of the exact value,
// denormal results included, unless the function's comment says otherwise. Infinities give the limit, NaN gives NaN.
// -ffp-contract may be on or off, since accuracy does not depend on whether a * b + c becomes an FMA. -ffast-math must
// be off, and so must its parts but for -fno-math-errno and -fno-trapping-math: compensated sums must be computed as
// they are written.
//
// Methods: exp, expm1 and the trigonometric functions reduce their argument as Cody and Waite do (Software Manual for
// the Elementary Functions, 1980), and log uses s = f / (2 + f) as Tang does (ACM TOMS 16(4), 1990). The polynomials
// are our own, made by Remez exchange at 60 digits; their relative error is below 1/16 ulp of the result.
//
// Conditions are numbers, 1 or 0, as in the derivatives of generated code: gt(a, b) * lt(a, c) says that both hold.
#pragma once

#include "math_exp.h"
#include "math_piecewise.h"
#include "math_special.h"
