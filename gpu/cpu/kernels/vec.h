/* Vectors of VW floats for the instruction set and model type of the including file (BF16, DP, VW are defined there).
 *
 * GCC's vector types lower to the target's instructions; a few places use intrinsics where that is not good enough. st:
 * element of hidden states and KV. at: element of scratch activations, the left side of products: bfloat16 pairs if there is
 * a pair product (DP), else float. Nothing else is rounded to bfloat16 inside a component.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define AI static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(4 * VW)));
typedef float vf_u __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint32_t vu_u __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));
typedef uint16_t vh_u __attribute__((vector_size(2 * VW), aligned(2), may_alias));
typedef uint32_t u32 __attribute__((may_alias));

#if BF16
typedef uint16_t st;
#define KS 2
#else
typedef float st;
#define KS 1
#endif
#if DP
typedef uint16_t at;
#else
typedef float at;
#endif

AI vu splat_bits(uint32_t bits) { return (vu){0} + bits; }
AI vf splat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (vf)splat_bits(bits);
}
AI vf load(const float *p) { return *(const vf_u *)p; }
AI void store(float *p, vf v) { *(vf_u *)p = v; }
/* a * b + c, rounded once if the instruction set can do it. Compilers may not turn a product and a sum into this
 * (-ffp-contract=off): GCC would do it in one copy of a loop and not in another, and a row's bits would depend on its
 * neighbours. */
AI vf mul_add(vf a, vf b, vf c) {
#if VW == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VW == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}
AI float mul_add1(float a, float b, float c) {
#if VW > 4
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
AI vf pick(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

AI vf vmax(vf a, vf b) {
#if VW == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return pick(a > b, a, b);
#endif
}

/* Converts to bfloat16, rounded to nearest even. */
AI vh narrow(vf v) {
#if DP
    return (vh)_mm512_cvtneps_pbh((__m512)v);
#else
    vu bits = (vu)v;
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, vh);
#endif
}
AI vf widen(vh v) { return (vf)(__builtin_convertvector(v, vu) << 16); }

/* Rounds a value as an element of `at` would. */
AI vf as_stored(vf v) {
#if DP
    return widen(narrow(v));
#else
    return v;
#endif
}

AI vf load_st(const st *p) {
#if BF16
    return widen(*(const vh_u *)p);
#else
    return load(p);
#endif
}
AI void store_st(st *p, vf v) {
#if BF16
    *(vh_u *)p = narrow(v);
#else
    store(p, v);
#endif
}
AI void store_at(at *p, vf v) {
#if DP
    *(vh_u *)p = narrow(v);
#else
    store(p, v);
#endif
}
/* Loads the last n < VW elements of a row. */
AI vf load_st_part(const st *p, int n) {
    st part[VW] = {0};
    memcpy(part, p, n * sizeof(st));
    return load_st(part);
}
AI void store_st_part(st *p, vf v, int n) {
    st part[VW];
    store_st(part, v);
    memcpy(p, part, n * sizeof(st));
}

AI vf load_part(const float *p, int n) {
    float part[VW] = {0};
    memcpy(part, p, n * sizeof(float));
    return load(part);
}
AI void store_part(float *p, vf v, int n) {
    float part[VW];
    store(part, v);
    memcpy(p, part, n * sizeof(float));
}
AI vi lanes(void) {
    vi lane;
    for (int i = 0; i < VW; i++)
        lane[i] = i;
    return lane;
}

AI float lanes_sum(vf v) {
    float a[VW];
    store(a, v);
    for (int w = VW / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] += a[i + w];
    return a[0];
}
AI float lanes_max(vf v) {
    float a[VW];
    store(a, v);
    for (int w = VW / 2; w; w /= 2)
        for (int i = 0; i < w; i++)
            a[i] = a[i] > a[i + w] ? a[i] : a[i + w];
    return a[0];
}

/* e^x within 2 units in the last place; arguments are clamped to +-87. exp(0) is exactly 1. */
AI vf vexp(vf x) {
    x = pick(x < -87.0f, splat(-87.0f), x);
    x = pick(x > 87.0f, splat(87.0f), x);
    /* 1.5 * 2^23: the low bits become the rounded integer */
    vf shifted = mul_add(x, splat(1.44269504088896341f), splat(12582912.0f));
    vf n = shifted - 12582912.0f;
    vf r = mul_add(n, splat(-0.693359375f), x);
    r = mul_add(n, splat(2.12194440e-4f), r);
    vf y = splat(1.9875691500e-4f);
    y = mul_add(y, r, splat(1.3981999507e-3f));
    y = mul_add(y, r, splat(8.3334519073e-3f));
    y = mul_add(y, r, splat(4.1665795894e-2f));
    y = mul_add(y, r, splat(1.6666665459e-1f));
    y = mul_add(y, r, splat(5.0000001201e-1f));
    y = mul_add(y, r * r, r + 1.0f);
    return (vf)((vu)y + ((vu)shifted << 23));
}
/* tanh and erf as quotients of polynomials (from Eigen), within 7 units in the last place. */
AI vf vtanh(vf x) {
    x = pick(x < -7.90531110f, splat(-7.90531110f), x);
    x = pick(x > 7.90531110f, splat(7.90531110f), x);
    vf s = x * x;
    vf p = mul_add(s, splat(-2.76076847742355e-16f), splat(2.00018790482477e-13f));
    p = mul_add(p, s, splat(-8.60467152213735e-11f));
    p = mul_add(p, s, splat(5.12229709037114e-08f));
    p = mul_add(p, s, splat(1.48572235717979e-05f));
    p = mul_add(p, s, splat(6.37261928875436e-04f));
    p = mul_add(p, s, splat(4.89352455891786e-03f));
    vf q = mul_add(s, splat(1.19825839466702e-06f), splat(1.18534705686654e-04f));
    q = mul_add(q, s, splat(2.26843463243900e-03f));
    q = mul_add(q, s, splat(4.89352518554385e-03f));
    return x * p / q;
}
AI vf verf(vf x) {
    x = pick(x < -4.0f, splat(-4.0f), x);
    x = pick(x > 4.0f, splat(4.0f), x);
    vf s = x * x;
    vf p = mul_add(s, splat(-2.72614225801306e-10f), splat(2.77068142495902e-08f));
    p = mul_add(p, s, splat(-2.10102402082508e-06f));
    p = mul_add(p, s, splat(-5.69250639462346e-05f));
    p = mul_add(p, s, splat(-7.34990630326855e-04f));
    p = mul_add(p, s, splat(-2.95459980854025e-03f));
    p = mul_add(p, s, splat(-1.60960333262415e-02f));
    vf q = mul_add(s, splat(-1.45660718464996e-05f), splat(-2.13374055278905e-04f));
    q = mul_add(q, s, splat(-1.68282697438203e-03f));
    q = mul_add(q, s, splat(-7.37332916720468e-03f));
    q = mul_add(q, s, splat(-1.42647390514189e-02f));
    return x * p / q;
}
AI float exp1(float x) { return vexp(splat(x))[0]; }

/* One unit of weights in VW columns, ready to be multiplied; or one unit of a row, in all lanes. */
typedef struct {
    vf low, high; /* the pair's elements, as float; `low` alone holds both (DP) or the one element (float32) */
} pair;

AI pair expand(vu w) {
#if BF16 && !DP
    return (pair){(vf)(w << 16), (vf)(w & 0xffff0000u)};
#else
    return (pair){(vf)w, (vf)w};
#endif
}
AI pair load_w(const uint32_t *w) { return expand(*(const vu_u *)w); }
AI pair load_x(const at *row, long unit) {
#if DP
    vf both = (vf)splat_bits(((const u32 *)row)[unit]);
    return (pair){both, both};
#elif BF16
    return (pair){splat(row[2 * unit]), splat(row[2 * unit + 1])};
#else
    vf one = splat(row[unit]);
    return (pair){one, one};
#endif
}
AI vf dot(vf sum, pair w, pair x) {
#if DP
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w.low, (__m512bh)x.low);
#elif BF16
    return mul_add(w.high, x.high, mul_add(w.low, x.low, sum));
#else
    return mul_add(w.low, x.low, sum);
#endif
}
