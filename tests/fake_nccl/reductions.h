/* reductions.h: what NCCL's types and ops make of n inputs. Part of fake_nccl.c. */
#ifndef REDUCTIONS_H
#define REDUCTIONS_H

/* ---- Reductions ------------------------------------------------------------------------------------------------- */

static size_t type_bytes(ncclDataType_t type) {
    static const unsigned char bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[type];
}

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return float_of_bits(sign | ((rest << 13) + 0x38000000));
    float small = (float)rest * 0x1p-24f;
    return sign ? -small : small;
}

/* Rounds to nearest, ties to even. */
static uint16_t float_to_half(float value) {
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13));
}

static float bf16_to_float(uint16_t value) { return float_of_bits((uint32_t)value << 16); }

static uint16_t float_to_bf16(float value) {
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float e5m2_to_float(uint8_t value) { return half_to_float((uint16_t)(value << 8)); }

static float e4m3_to_float(uint8_t value) {
    int exponent = value >> 3 & 15, mantissa = value & 7;
    float size = exponent ? (float)(8 + mantissa) * 0x1p-10f * (float)(1 << exponent) : (float)mantissa * 0x1p-9f;
    if ((value & 0x7f) == 0x7f) return float_of_bits(0x7fc00000);
    return value & 0x80 ? -size : size;
}

/* The nearest of the 8-bit numbers up to `largest`, ties to even; beyond it, that one. */
static uint8_t float_to_8(float value, uint8_t largest, float (*to_float)(uint8_t)) {
    float size = value < 0 ? -value : value;
    uint8_t best = 0, sign = value < 0 ? 0x80 : 0;
    if (value != value) return 0x7f;
    for (uint8_t code = 1; code <= largest; code++) {
        float now = to_float(code), then = to_float(best), up = now > size ? now - size : size - now,
              down = then > size ? then - size : size - then;
        if (up < down || (up == down && !(code & 1))) best = code;
    }
    return sign | best;
}

static uint8_t float_to_e5m2(float value) { return float_to_8(value, 0x7b, e5m2_to_float); }
static uint8_t float_to_e4m3(float value) { return float_to_8(value, 0x7e, e4m3_to_float); }

/* out[i] = the inputs' i-th elements combined in rank order, rounded to the type after each step. Averages of floats
 * multiply each input by the rounded 1/n, as NCCL does; those of integers divide the sum. */
#define LOOP(T, FIRST, NEXT, LAST)                    \
    for (size_t i = 0; i < count; i++) {              \
        T b = ((const T *)inputs[0])[i], a = (FIRST); \
        for (int rank = 1; rank < n; rank++) {        \
            b = ((const T *)inputs[rank])[i];         \
            a = (NEXT);                               \
        }                                             \
        ((T *)out)[i] = (LAST);                       \
    }

#define REDUCER(NAME, T, ADD, MULTIPLY, LESS, SCALE_BY, SCALE, DIVIDE)                                     \
    static void NAME(void *out, const unsigned char *const *inputs, int n, size_t count, ncclRedOp_t op) { \
        SCALE_BY;                                                                                          \
        switch (op) {                                                                                      \
        case ncclSum:                                                                                      \
            LOOP(T, b, ADD(T, a, b), a) break;                                                             \
        case ncclProd:                                                                                     \
            LOOP(T, b, MULTIPLY(T, a, b), a) break;                                                        \
        case ncclMax:                                                                                      \
            LOOP(T, b, LESS(a, b) ? b : a, a) break;                                                       \
        case ncclMin:                                                                                      \
            LOOP(T, b, LESS(b, a) ? b : a, a) break;                                                       \
        default:                                                                                           \
            LOOP(T, SCALE(T, b), ADD(T, a, SCALE(T, b)), DIVIDE(T, a)) break;                              \
        }                                                                                                  \
    }

#define WRAP_ADD(T, a, b) ((T)((uint64_t)(a) + (uint64_t)(b)))
#define WRAP_MULTIPLY(T, a, b) ((T)((uint64_t)(a) * (uint64_t)(b)))
#define PLAIN_ADD(T, a, b) ((T)((a) + (b)))
#define PLAIN_MULTIPLY(T, a, b) ((T)((a) * (b)))
#define PLAIN_LESS(a, b) ((a) < (b))
#define SCALED(T, a) PLAIN_MULTIPLY(T, a, scale)
#define SAME(T, a) (a)
#define DIVIDED(T, a) ((T)((a) / (T)n))
#define HALF_ADD(T, a, b) float_to_half(half_to_float(a) + half_to_float(b))
#define HALF_MULTIPLY(T, a, b) float_to_half(half_to_float(a) * half_to_float(b))
#define HALF_LESS(a, b) (half_to_float(a) < half_to_float(b))
#define HALF_SCALED(T, a) HALF_MULTIPLY(T, a, scale)
#define BF16_ADD(T, a, b) float_to_bf16(bf16_to_float(a) + bf16_to_float(b))
#define BF16_MULTIPLY(T, a, b) float_to_bf16(bf16_to_float(a) * bf16_to_float(b))
#define BF16_LESS(a, b) (bf16_to_float(a) < bf16_to_float(b))
#define BF16_SCALED(T, a) BF16_MULTIPLY(T, a, scale)
#define E4M3_ADD(T, a, b) float_to_e4m3(e4m3_to_float(a) + e4m3_to_float(b))
#define E4M3_MULTIPLY(T, a, b) float_to_e4m3(e4m3_to_float(a) * e4m3_to_float(b))
#define E4M3_LESS(a, b) (e4m3_to_float(a) < e4m3_to_float(b))
#define E4M3_SCALED(T, a) E4M3_MULTIPLY(T, a, scale)
#define E5M2_ADD(T, a, b) float_to_e5m2(e5m2_to_float(a) + e5m2_to_float(b))
#define E5M2_MULTIPLY(T, a, b) float_to_e5m2(e5m2_to_float(a) * e5m2_to_float(b))
#define E5M2_LESS(a, b) (e5m2_to_float(a) < e5m2_to_float(b))
#define E5M2_SCALED(T, a) E5M2_MULTIPLY(T, a, scale)
#define E4M3_SCALE uint8_t scale = float_to_e4m3(1.0f / (float)n)
#define E5M2_SCALE uint8_t scale = float_to_e5m2(1.0f / (float)n)
#define NO_SCALE (void)0
#define FLOAT_SCALE float scale = 1.0f / (float)n
#define DOUBLE_SCALE double scale = 1.0 / (double)n
#define HALF_SCALE uint16_t scale = float_to_half(1.0f / (float)n)
#define BF16_SCALE uint16_t scale = float_to_bf16(1.0f / (float)n)

REDUCER(reduce_i8, int8_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u8, uint8_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_i32, int32_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u32, uint32_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_i64, int64_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_u64, uint64_t, WRAP_ADD, WRAP_MULTIPLY, PLAIN_LESS, NO_SCALE, SAME, DIVIDED)
REDUCER(reduce_f16, uint16_t, HALF_ADD, HALF_MULTIPLY, HALF_LESS, HALF_SCALE, HALF_SCALED, SAME)
REDUCER(reduce_f32, float, PLAIN_ADD, PLAIN_MULTIPLY, PLAIN_LESS, FLOAT_SCALE, SCALED, SAME)
REDUCER(reduce_f64, double, PLAIN_ADD, PLAIN_MULTIPLY, PLAIN_LESS, DOUBLE_SCALE, SCALED, SAME)
REDUCER(reduce_bf16, uint16_t, BF16_ADD, BF16_MULTIPLY, BF16_LESS, BF16_SCALE, BF16_SCALED, SAME)
REDUCER(reduce_e4m3, uint8_t, E4M3_ADD, E4M3_MULTIPLY, E4M3_LESS, E4M3_SCALE, E4M3_SCALED, SAME)
REDUCER(reduce_e5m2, uint8_t, E5M2_ADD, E5M2_MULTIPLY, E5M2_LESS, E5M2_SCALE, E5M2_SCALED, SAME)

typedef void (*reducer)(void *out, const unsigned char *const *inputs, int n, size_t count, ncclRedOp_t op);
static const reducer reducers[ncclNumTypes] = {reduce_i8,  reduce_u8,   reduce_i32,  reduce_u32,
                                               reduce_i64, reduce_u64,  reduce_f16,  reduce_f32,
                                               reduce_f64, reduce_bf16, reduce_e4m3, reduce_e5m2};

#endif
