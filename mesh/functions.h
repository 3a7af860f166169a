/* mesh/functions.h - square root, logarithm, exponential, sine: what stands for libm. Part of mesh.h 0.1.0. MIT licence.

   Includes transport.h. No libm: one build makes the same bits everywhere, and clients link nothing. To some 1e-15 but where it says otherwise.
   Builds that fuse other multiplies and adds (-march=native in gcc's gnu modes, or with clang) differ in the last bit of an f64.
   Clients compile with -Ofast: what is infinite or no number is seen by its bits or not at all.

DO THIS
    Nothing: random.h, norm.h and others include it.
*/
#if !defined(MESH_FUNCTIONS_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_FUNCTIONS_IMPLEMENTED))
#include "transport.h"
#endif

#ifndef MESH_FUNCTIONS_H
#define MESH_FUNCTIONS_H
#endif /* MESH_FUNCTIONS_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_FUNCTIONS_IMPLEMENTED)
#define MESH_FUNCTIONS_IMPLEMENTED

#define MESH__INFINITE UINT64_C(0x7ff0000000000000) /* the bits; above it, the sign away: no number */

/* By way of memory: under -Ofast clang takes it of an argument that it is a finite number, whatever its bits are asked. */
MESH__INLINE uint64_t mesh__double_bits(double x) {
    const volatile double held = x;
    const double seen = held;
    uint64_t bits;
    memcpy(&bits, &seen, sizeof bits);
    return bits;
}
MESH__INLINE double mesh__double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
MESH__INLINE int mesh__is_finite(double x) { return (mesh__double_bits(x) & MESH__INFINITE) != MESH__INFINITE; }
MESH__INLINE int mesh__is_number(double x) { return mesh__double_bits(x) << 1 <= MESH__INFINITE << 1; }

/* 2^e times the size of x, which is finite; 0 below the least normal number. By the bits: -Ofast makes one factor of two, and 2^1200 is none that a double holds. */
MESH__PRIVATE double mesh__scaled(double x, int e) {
    uint64_t bits = mesh__double_bits(x) << 1 >> 1;
    if (!(bits >> 52)) bits = mesh__double_bits((double)bits), e -= 1074;
    return (int64_t)(bits >> 52) + e > 0 ? mesh__double_of(bits + ((uint64_t)(int64_t)e << 52)) : 0;
}

MESH__PRIVATE double mesh__sqrt(double x) {
    double y = x, scale = 1;
    int i;
    if (!mesh__is_finite(x) || x <= 0) return mesh__is_finite(x) ? 0 : x;
    for (; y >= 4; y /= 4) scale *= 2;
    for (; y < 1; y *= 4) scale /= 2;
    x = y;
    y = 0.59 + 0.417 * y; /* of 1 to 4, within 8 % */
    for (i = 0; i < 5; i++) y = 0.5 * (y + x / y);
    return y * scale;
}

/* The natural logarithm: of x = m * 2^e, 1/sqrt(2) <= m < sqrt(2), as 2 artanh((m - 1) / (m + 1)). Of 0 -infinity, of what is below it no number; of
   infinity and of no number what they are. */
MESH__PRIVATE double mesh__ln(double x) {
    uint64_t bits = mesh__double_bits(x);
    double s, square, sum = 0;
    int e = 0, k;
    if (!(bits << 1)) return mesh__double_of(MESH__INFINITE | UINT64_C(1) << 63);
    if (bits >= MESH__INFINITE) return bits >> 63 ? mesh__double_of(MESH__INFINITE + 1) : x;
    for (; x >= 1.4142135623730951; x /= 2) e++;
    for (; x < 0.7071067811865476; x *= 2) e--;
    s = (x - 1) / (x + 1);
    square = s * s;
    for (k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return 2 * s * sum + e * 0.6931471805599453;
}

/* Cosine and sine of 2 pi x, x in [0, 1): by the eighth that it is in. */
MESH__PRIVATE void mesh__turn_of(double x, double *cosine, double *sine) {
    int eighth = (int)(x * 8), k;
    double a = (x * 8 - eighth) * 0.7853981633974483, c = 0, s = 0, swap; /* an angle below a quarter of pi */
    if (eighth & 1) a = 0.7853981633974483 - a;
    for (k = 16; k >= 2; k -= 2) c = (1 + c) * (-a * a / (k * (k - 1)));
    for (k = 17; k >= 3; k -= 2) s = (1 + s) * (-a * a / (k * (k - 1)));
    c = 1 + c;
    s = a * (1 + s);
    if ((eighth + 1) & 2) swap = c, c = s, s = swap;
    *cosine = eighth >= 2 && eighth < 6 ? -c : c;
    *sine = eighth >= 4 ? -s : s;
}

/* e^x, to 1e-13; 0 below the least normal number, the greatest number above what there is; no number of no number. x = k ln 2 + r, |r| <= ln 2 / 2. */
MESH__PRIVATE double mesh__exp(double x) {
    double r, sum = 1;
    uint64_t bits;
    int k, i;
    if (!mesh__is_number(x)) return x;
    if (!(x > -708)) return 0;
    if (x > 709) return 1.7976931348623157e308;
    k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    r = x - k * 0.6931471803691238 - k * 1.9082149292705877e-10; /* ln 2, its upper bits apart */
    for (i = 12; i >= 1; i--) sum = 1 + sum * r / i;
    bits = (uint64_t)(k + 1022) << 52; /* 2^(k - 1): k may be 1024 */
    memcpy(&r, &bits, sizeof r);
    return 2 * (sum * r);
}

/* e^x of x <= 0 in float, to 2e-7; 0 below -87, no number of no number. Without a branch or a table: loops of it become vectors. */
MESH__INLINE float mesh__exp_below(float x) {
    float at = x > -87.0f ? x : -87.0f, r, sum, power;
    int k = (int)(at * 1.44269504f - 0.5f);
    uint32_t bits = (uint32_t)(k + 127) << 23, of_x;
    memcpy(&of_x, &x, sizeof of_x);
    r = at - (float)k * 0.693359375f + (float)k * 2.12194440e-4f; /* ln 2, its upper bits apart */
    memcpy(&power, &bits, sizeof power);
    sum = 1.98412698e-4f;
    sum = sum * r + 1.38888889e-3f;
    sum = sum * r + 8.33333333e-3f;
    sum = sum * r + 4.16666667e-2f;
    sum = sum * r + 1.66666667e-1f;
    sum = sum * r + 0.5f;
    sum = sum * r + 1;
    sum = sum * r + 1;
    sum = x > -87.0f ? sum * power : 0;
    return (of_x & 0x7fffffffu) > 0x7f800000u ? x : sum;
}
#endif /* MESH_FUNCTIONS_IMPLEMENTED */
