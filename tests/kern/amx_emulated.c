/* What the tiles of AMX compute, by vectors: the same bits as the processor's (Intel SDM volume 2, TDPBF16PS and TDPBSUD). Every thread has
 * registers of its own. */
#include <string.h>

#include "kernels/cpu/amx_priv.h"

static _Thread_local struct {
	u8 rows[AMX_REGISTERS];
	_Alignas(64) u8 data[AMX_REGISTERS][AMX_ROWS][AMX_ROW_BYTES];
} registers;

void emulated_configure(const struct amx_config *config)
{
	ASSERT(config->palette == 1);
	memset(&registers, 0, sizeof(registers));
	for (u32 i = 0; i < AMX_REGISTERS; i++) {
		ASSERT(config->rows[i] > 0 && config->rows[i] <= AMX_ROWS && config->row_bytes[i] == AMX_ROW_BYTES);
		registers.rows[i] = config->rows[i];
	}
}

void emulated_zero(u32 tile)
{
	memset(registers.data[tile], 0, sizeof(registers.data[tile]));
}

void emulated_load(u32 tile, const void *from, size_t stride)
{
	ASSERT(registers.rows[tile] > 0);
	for (u32 r = 0; r < registers.rows[tile]; r++)
		memcpy(registers.data[tile][r], (const char *)from + r * stride, AMX_ROW_BYTES);
}

void emulated_store(u32 tile, void *to, size_t stride)
{
	ASSERT(registers.rows[tile] > 0);
	for (u32 r = 0; r < registers.rows[tile]; r++)
		memcpy((char *)to + r * stride, registers.data[tile][r], AMX_ROW_BYTES);
}

/* Of 32 products the even ones and the odd ones are summed apart, which then join what was there. Numbers that are not normal are zeros. */
void emulated_add_bf16(u32 sums, u32 inputs, u32 weights)
{
	const u32 before = _mm_getcsr();
	ASSERT(registers.rows[inputs] == registers.rows[sums] && registers.rows[weights] == AMX_UNITS);
	_mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
	for (u32 r = 0; r < registers.rows[sums]; r++) {
		vec even = vec_zero(), odd = vec_zero();
		for (u32 u = 0; u < AMX_UNITS; u++) {
			u32 pair;
			memcpy(&pair, registers.data[inputs][r] + 4 * u, 4);
			__m512i x = _mm512_set1_epi32((i32)pair), w = _mm512_loadu_si512(registers.data[weights][u]);
			const __m512i upper = _mm512_set1_epi32((i32)0xffff0000);
			even = vec_fma((vec)_mm512_slli_epi32(x, 16), (vec)_mm512_slli_epi32(w, 16), even);
			odd = vec_fma((vec)_mm512_and_si512(x, upper), (vec)_mm512_and_si512(w, upper), odd);
		}
		float *to = (float *)(void *)registers.data[sums][r];
		vec_store(to, vec_add(vec_load(to), vec_add(even, odd)));
	}
	_mm_setcsr(before);
}

/* A byte with a sign, its highest bit flipped, is one without that is 128 more. */
static void add_bytes(u32 sums, u32 inputs, u32 weights, bool with_sign)
{
	const __m512i flip = _mm512_set1_epi8(with_sign ? (char)128 : 0), offset = _mm512_set1_epi8((char)128);
	ASSERT(registers.rows[inputs] == registers.rows[sums] && registers.rows[weights] == AMX_UNITS);
	for (u32 r = 0; r < registers.rows[sums]; r++) {
		__m512i sum = _mm512_loadu_si512(registers.data[sums][r]), more = _mm512_setzero_si512();
		for (u32 u = 0; u < AMX_UNITS; u++) {
			const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(registers.data[weights][u]), flip);
			i32 four;
			memcpy(&four, registers.data[inputs][r] + 4 * u, 4);
			sum = _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi32(four));
			more = _mm512_dpbusd_epi32(more, offset, _mm512_set1_epi32(four));
		}
		_mm512_storeu_si512(registers.data[sums][r], with_sign ? _mm512_sub_epi32(sum, more) : sum);
	}
}

void emulated_add_bytes(u32 sums, u32 inputs, u32 weights)
{
	add_bytes(sums, inputs, weights, false);
}

void emulated_add_signed(u32 sums, u32 inputs, u32 weights)
{
	add_bytes(sums, inputs, weights, true);
}
