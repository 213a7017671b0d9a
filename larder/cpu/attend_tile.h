// What passes between the attention driver (ordinary code) and the code of one instruction set.
// Plain data only: files with flags of their own include this and nothing that could make the
// linker keep an inline function compiled for them.
//
// Words: a *lane* is a key's place in its block of 64 positions; a *row* is one query with one of
// its heads. Rows that share a key head share the tiles of K and V. A *part* (m, l, o) is the
// unnormalised result over some keys: m the largest score, l the sum of exp(score - m), o the sum
// of exp(score - m) * v; l = 0 says that no key was visible.
#pragma once

#include <cstdint>

#include "larder/tensor/dtype.h"

namespace larder::cpu {

constexpr int kTileKeys = 64;  // kAttendBlock of tensor/kernels.h
constexpr int kTileRows =
    6;  // rows a call of fold_block takes: 6 x 4 sums fill AVX-512's registers
constexpr int kDirectChannels = 64;
// Products of so many codes of 8 bits with numbers of 16 bits add up to less than 2^31.
constexpr int kMostFoldedChannels = 256;
constexpr int kTilePad = 16;  // rows of tiles and parts are padded to the widest vector

// How a stored token lies in memory. A new format is a new value here, a case in kv_tile.cc and one
// in simd/kv_tile-inl.h; no arithmetic changes.
enum class KVFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kCodes,   // codes that the sets read themselves, as KVLanes::codes says
  kPacked,  // other codes: widened before a set sees them (stage_lanes of kv_tile.h)
};

// How the codes of one side of one segment are read, the same for a whole call. head_dim is a
// multiple of 16. A code stands for (code - zero) * scale or scale * code - zero, in f32 with each
// operation rounded, as kv_dequantize() of tensor/kv_dequant.h has it.
struct KVCodes {
  int32_t segment = -1;  // -1: none
  int32_t bits = 0;      // 8, 4 or 2
  bool zero_first = false;
  bool symmetric = false;  // the zero is 2^(bits - 1) and is not stored
  bool by_channel = false;
  // By token: channels that share a parameter, a multiple of 16, and how many parameters that
  // makes. By channel: one parameter a channel, alike for `token_group` tokens (at least 32).
  int32_t channel_group = 0, token_group = 1, parameters = 0;
  DType dtype = DType::kF32;  // of the parameters: f32, f16, bf16
  int64_t token_stride = 0;   // bytes between the parameters of two (groups of) tokens
  // Whether the codes of a block may go into products as they are (simd/folded-inl.h).
  bool may_fold = false;
};

// The parameters of the first token of a run, which is the token number `within` of its group.
struct KVRunParameters {
  const char* scale;
  const char* zero;
  int32_t within;
};

// Where one side of a block's keys lies, by lane.
struct KVLanes {
  const void* at[kTileKeys];
  KVFormat format[kTileKeys];
  const KVCodes* codes = nullptr;  // of lanes with kCodes; set before the block is located
  KVRunParameters run[kTileKeys];  // beside KVBlock::run, of those with kCodes
  // The parameters in f32, filled by AttendOps::widen_parameters. By token: parameter g of a lane
  // is scale[g * 64 + lane]. By channel: that of channel d is scale[group[lane] * head_dim + d].
  float* scale = nullptr;
  float* zero = nullptr;
  uint8_t group[kTileKeys];
  // Whether the codes of this block do go into products as they are; likewise.
  bool folded = false;
};
// Floats a channel in each of KVLanes::scale and zero. By token there are up to head_dim / 16
// parameters for 64 lanes; by channel a block meets at most 3 groups of 32 tokens, and one more
// where a ring begins again.
constexpr int64_t kParameterFloats = 8;

// Lanes whose tokens lie one after the other in a page.
struct KVRun {
  int32_t segment, lane, count;
  int64_t slot;  // of the first
};

// Where the keys of one block lie, for one row of the batch and one key head.
struct KVBlock {
  uint64_t present = 0;  // lanes that the view holds (and that were asked for)
  // Lanes that are not present point to zeros in K (a score is computed and dropped); V is not
  // read.
  KVLanes k, v;
  int32_t num_runs = 0;
  KVRun run[kTileKeys];
};

// Parts of consecutive rows. o is [rows, padded_dim], its padding zero.
struct AttendParts {
  float* m;
  float* l;
  float* o;
};

// Scores, softmax and output of up to kTileRows rows over one block, folded into their parts.
struct BlockWork {
  int32_t rows = 0, head_dim = 0, padded_dim = 0;
  const float* q = nullptr;       // [rows, head_dim], prepared
  const float* k_tile = nullptr;  // [head_dim, 64]: transposed, so that lanes are keys
  // [64, padded_dim]; lanes that no row sees hold anything. Null: V is read where `block` says, of
  // one format in all lanes, a multiple of kDirectChannels wide, while `next` is fetched.
  const float* v_tile = nullptr;
  const KVBlock* block = nullptr;
  const KVBlock* next = nullptr;  // to fetch meanwhile; null if other rows do
  float scale = 1, softcap = 0;
  uint64_t visible[kTileRows];     // lanes that a row sees
  const float* bias[kTileRows]{};  // of lane 0, or null; read at visible lanes only
  AttendParts parts{};
};

// What an instruction set supplies. All of them are pure functions of their arguments.
struct AttendOps {
  // Turns queries [rows, head_dim] into the form that fold_block wants, each where it is; null:
  // they stay f32.
  void (*prepare_q)(float* q, int64_t rows, int32_t head_dim) = nullptr;
  // Whether fold_block wants a tile of V even for few rows.
  bool needs_v_tile = false;
  // Widens the parameters of the lanes that are in codes, on one side of a block, and fetches those
  // of the side's next block. Needed before load_k, load_v and fold_block of that block.
  void (*widen_parameters)(const KVBlock& block, KVLanes& lanes, const KVBlock& next,
                           const KVLanes& next_lanes, int32_t head_dim) = nullptr;
  // Fill the tiles of `block`, which has a lane present; `next` is what will be loaded next, or
  // has no lane present.
  void (*load_k)(const KVBlock& block, const KVBlock& next, int32_t head_dim,
                 float* k_tile) = nullptr;
  void (*load_v)(const KVBlock& block, const KVBlock& next, int32_t head_dim, int32_t padded_dim,
                 float* v_tile) = nullptr;
  void (*fold_block)(const BlockWork& work) = nullptr;
  // into = merge(into, from), row by row; empty parts change nothing.
  void (*merge)(const AttendParts& into, const AttendParts& from, int32_t rows,
                int32_t padded_dim) = nullptr;
  // Merges the sink (or null) into the first row of `part`, then out = o / l; zeros where l is 0.
  void (*finish_row)(const AttendParts& part, const float* sink, int32_t head_dim,
                     float* out) = nullptr;
};

// Defined in the folders of the instruction sets.
extern const AttendOps kAttendAvx2, kAttendAvx512;
// For K and V in bf16 or in codes, of a head_dim that is a multiple of 32: q, what codes
// stand for, and the weights are rounded to bf16. Tiles hold pairs of bf16 in 32-bit words.
extern const AttendOps kAttendBf16Dot;

}  // namespace larder::cpu
