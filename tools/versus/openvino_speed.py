"""OpenVINO GenAI's prefill of a GGUF file, as a JSON line.

usage: openvino_speed.py MODEL.gguf [-p 512] [-t 2] [-r 3]
pp is the tokens/s of a prompt of about p tokens, by the time to its first token: the median of r runs after one to warm up.
"""
import argparse
import json
import statistics


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for flag, default in dict(p=512, t=2, r=3).items():
        parser.add_argument("-" + flag, type=int, default=default)
    a = parser.parse_args()
    import openvino_genai as ov
    pipe = ov.LLMPipeline(a.model, "CPU", INFERENCE_NUM_THREADS=a.t)
    tokenizer = pipe.get_tokenizer()
    settings = ov.GenerationConfig()
    settings.max_new_tokens = 1
    settings.apply_chat_template = False
    words = [f"{i * 7919 % 1000}" for i in range(a.p)]
    speeds = []
    for run in range(a.r + 1):
        # Another first word each time: nothing of an earlier prompt can be used again.
        text = " ".join([f"run{run}", *words])
        ids = tokenizer.encode(text).input_ids.data.reshape(-1)[:a.p]
        metrics = pipe.generate([tokenizer.decode(ids.tolist())], settings).perf_metrics
        if run:
            speeds.append(metrics.get_num_input_tokens() / metrics.get_ttft().mean * 1000)
    print(json.dumps(dict(engine="OpenVINO GenAI", p=a.p, pp=round(statistics.median(speeds), 2))))


if __name__ == "__main__":
    main()
