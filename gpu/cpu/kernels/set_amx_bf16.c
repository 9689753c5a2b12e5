/* Kernels in bfloat16 for processors with tile registers (AMX), which are used for products with weights and of
 * attention. The rest is as in avx512_bf16. */
#include "native.h"
#if BW_HAS_AMX
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16,amx-tile,amx-bf16")
#define VW 16
#define BF16 1
#define DP 1
#define AMX 1
#define TILE_ROWS 12
#define KERNELS bw_amx_bf16
#define NAME "amx"
#include "body.h"
#endif
