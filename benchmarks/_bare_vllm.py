"""The script a vLLM user would write, with nothing of ours in it: a speculative run over prompts from a file, once for each
line that it reads."""

import json
import sys
import time


def main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(open(sys.argv[1]))  # noqa: PTH123, SIM115
    llm = LLM(
        model=job["target"],
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=job["max_model_len"],
        max_num_seqs=job["batch_size"],
        enable_prefix_caching=False,
        speculative_config={"method": "draft_model", "model": job["draft"], "num_speculative_tokens": job["lookahead"]},
    )
    params = SamplingParams(temperature=0.0, max_tokens=job["max_new_tokens"], ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    llm.generate(prompts[:2], params, use_tqdm=False)
    print("\nready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
        print("\n" + json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
