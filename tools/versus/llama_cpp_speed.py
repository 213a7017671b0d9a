"""llama.cpp, through llama-cpp-python, in llama-bench's terms: its model files, and its speed as a JSON line.

usage: llama_cpp_speed.py gguf  SOURCE.gguf OUT.gguf bf16|f32|q8_0   every matrix dequantized and written back as one type
       llama_cpp_speed.py bench MODEL.gguf [-p 512] [-n 64] [-d 0] [-t 2] [-r 1] [-ctk f16] [-ctv f16] [-b 1]
       llama_cpp_speed.py start MODEL.gguf [-t 2] [--text TEXT]
start: seconds from opening the file to the first token after the text, without those that Python takes to start.
bench: prefill tokens/s (pp) and decode tokens/s (tg), medians of r runs after one to warm up. pp is p tokens after d, tg is
n tokens after d; with -b B tg is the total over B sequences that each have d + p tokens. It runs with and without flash
attention, whose worth depends on the case, and gives the better of each figure. A quantized V needs it on.
"""
import argparse
import ctypes
import json
import random
import statistics
import sys
import time


def rewrite(source, out, kind):
    """Copy a GGUF with all its metadata, every quantized matrix dequantized to bf16 or f32."""
    import gguf
    import numpy as np
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, arch)
    skip = {"general.architecture", "general.quantization_version", "general.file_type"}
    for name, field in reader.fields.items():
        if name in skip or name.startswith("GGUF."):
            continue
        vtype = field.types[0]
        sub = field.types[-1] if vtype == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), vtype, sub_type=sub)
    types = gguf.GGMLQuantizationType
    target = {"bf16": types.BF16, "f32": types.F32, "q8_0": types.Q8_0}[kind]
    for t in reader.tensors:
        data = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        if data.ndim > 1:
            writer.add_tensor(t.name, gguf.quantize(data, target), raw_dtype=target)
        else:
            writer.add_tensor(t.name, data, raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KV = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


def bench(a, fa):
    import llama_cpp as L
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(a.model.encode(), L.llama_model_default_params())
    vocab_size = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    cp = L.llama_context_default_params()
    cp.n_ctx = (a.p + a.d + a.n + 32) * a.b
    cp.n_batch = 2048
    cp.n_ubatch = 512
    cp.n_seq_max = a.b
    cp.n_threads = cp.n_threads_batch = a.t
    cp.type_k, cp.type_v = KV[a.ctk], KV[a.ctv]
    cp.flash_attn_type = fa
    cp.kv_unified = False
    ctx = L.llama_init_from_model(model, cp)
    assert ctx, "context refused"
    memory = L.llama_get_memory(ctx)
    rng = random.Random(1)
    batch = L.llama_batch_init(2048, 0, 1)

    def decode(tokens):  # tokens: list of (token, position, sequence, wants_logits)
        for at in range(0, len(tokens), 512):
            part = tokens[at:at + 512]
            batch.n_tokens = len(part)
            for i, (token, pos, seq, want) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos, 1, want
                batch.seq_id[i][0] = seq
            assert L.llama_decode(ctx, batch) == 0
        L.llama_synchronize(ctx)

    def fill(seq, start, count):
        decode([(rng.randrange(3, vocab_size), start + i, seq, i == count - 1) for i in range(count)])

    pp, tg = [], []
    for run in range(a.r + 1):  # the first run warms up
        L.llama_memory_clear(memory, True)
        for s in range(a.b):
            if a.d:
                fill(s, 0, a.d)
        start = time.perf_counter()
        if a.p:
            for s in range(a.b):
                fill(s, a.d, a.p)
            if run:
                pp.append(a.p * a.b / (time.perf_counter() - start))
        at = a.d + a.p
        if a.b == 1 and a.p:  # llama-bench: decode starts at depth d
            L.llama_memory_seq_rm(memory, 0, a.d, -1)
            at = a.d
        start = time.perf_counter()
        for i in range(a.n):
            decode([(rng.randrange(3, vocab_size), at + i, s, True) for s in range(a.b)])
        if run and a.n:
            tg.append(a.n * a.b / (time.perf_counter() - start))
    L.llama_free(ctx)
    L.llama_model_free(model)
    med = lambda x: round(statistics.median(x), 2) if x else None
    return dict(engine="llama.cpp", model=a.model.split("/")[-1], threads=a.t, p=a.p, n=a.n, d=a.d, b=a.b,
                type_k=a.ctk, type_v=a.ctv, fa=fa, pp=med(pp), tg=med(tg))


def start(a):
    import llama_cpp as L
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    begun = time.perf_counter()
    L.llama_backend_init()
    model = L.llama_model_load_from_file(a.model.encode(), L.llama_model_default_params())
    vocab = L.llama_model_get_vocab(model)
    text = a.text.encode()
    ids = (L.llama_token * 512)()
    count = L.llama_tokenize(vocab, text, len(text), ids, 512, True, False)
    assert count > 0, "text refused"
    cp = L.llama_context_default_params()
    cp.n_ctx = 512
    cp.n_threads = cp.n_threads_batch = a.t
    ctx = L.llama_init_from_model(model, cp)
    assert ctx, "context refused"
    assert L.llama_decode(ctx, L.llama_batch_get_one(ids, count)) == 0
    logits = L.llama_get_logits_ith(ctx, -1)
    vocab_size = L.llama_vocab_n_tokens(vocab)
    floats = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * vocab_size)).contents
    seconds = time.perf_counter() - begun  # the choice below would be Python's time
    return dict(engine="llama.cpp", tokens=count, first=max(range(vocab_size), key=floats.__getitem__), seconds=seconds)


def best_of(rows):
    """One row with the better of each figure, and which setting gave it."""
    row = dict(rows[0], fa="best")
    for key in ("pp", "tg"):
        top = max(rows, key=lambda r: r[key] or 0)
        row[key], row[key + "_fa"] = top[key], top["fa"]
    return row


def main():
    if sys.argv[1:2] == ["gguf"]:
        if len(sys.argv) != 5:
            sys.exit(__doc__)
        return rewrite(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["bench", "start"])
    parser.add_argument("model")
    for flag, default in dict(p=512, n=64, d=0, t=2, r=1, b=1).items():
        parser.add_argument("-" + flag, type=int, default=default)
    parser.add_argument("-ctk", default="f16")
    parser.add_argument("-ctv", default="f16")
    parser.add_argument("--text", default="")
    args = parser.parse_args()
    if args.mode == "start":
        return print(json.dumps(start(args)))
    settings = [1] if args.ctv.startswith("q") else [0, 1]
    print(json.dumps(best_of([bench(args, fa) for fa in settings])))


if __name__ == "__main__":
    main()
