// Elementwise functions of vectors, one name each: rnncc::tanh(v) for Vec<float> and Vec<double>.
//
// Branch-free (a lane of an infrequent case costs nothing extra), except sin and cos of large arguments, pow and remainder,
// which go lane by lane through the C library. Errors against the exact value: at most 2 ulp (float), 4 ulp (double),
// denormal results included, unless said otherwise beside the function. Infinities give the limit, NaN gives NaN.
// Accuracy does not depend on whether a * b + c is contracted to an FMA, so -ffp-contract may be on or off; -ffast-math
// and its parts (but -fno-math-errno, -fno-trapping-math) must be off: compensated sums here are meant as written.
//
// Methods: exp, expm1 and the trigonometric functions reduce their argument in the manner of Cody and Waite (Software Manual
// for the Elementary Functions, 1980); log uses s = f / (2 + f) (Tang, ACM TOMS 16(4), 1990). The polynomials are our own:
// Remez exchange at 60 digits, relative error below 1/16 ulp of the result.
//
// Conditions are numbers, 1 or 0, as in the generated code's derivatives: gt(a, b) * lt(a, c) is a conjunction.
#pragma once

#include "math_exp.h"
#include "math_piecewise.h"
#include "math_special.h"
