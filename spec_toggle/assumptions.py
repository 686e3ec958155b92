"""What the plugin requires of SGLang, beside what its imports and its hooks say by themselves."""

from __future__ import annotations

from importlib.resources import files

from spec_toggle import hooks
from spec_toggle.contract import SCHEDULE_BATCH, Requirement, names, needed, uses_of_host
from spec_toggle.hooks import EAGLE_WORKER, SCHEDULER
from spec_toggle.schedule_batch import SCHEDULE_BATCH_ASSUMPTIONS
from spec_toggle.source import Source
from spec_toggle.worker_batch import WORKER_BATCH_ASSUMPTIONS

HOOKS = (*hooks.FLAG_HOOKS, *hooks.TOGGLE_HOOKS, *hooks.HTTP_HOOKS)
DRAFT_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
ENGINE = "sglang.srt.entrypoints.engine.Engine"

LOADING = (
    Requirement(
        "sglang.launch_server",
        "plugins are loaded before arguments are parsed",
        contains=("load_plugins()\n    server_args = prepare_server_args",),
    ),
    Requirement(
        "sglang.cli.serve.serve", "sglang serve loads plugins", contains=("load_plugins()",)
    ),
    Requirement(
        f"{ENGINE}.__init__",
        "Engine loads plugins, and builds its arguments by an attribute that can be replaced",
        contains=("load_plugins()", "self.server_args_class(**kwargs)"),
    ),
    Requirement(
        "sglang.srt.managers.scheduler.run_scheduler_process",
        "every scheduler process loads plugins",
        contains=("load_plugins()",),
    ),
    Requirement(
        "sglang.srt.plugins",
        "the loader calls entry points of this group",
        contains=("'sglang.srt.plugins'",),
    ),
    Requirement(
        "sglang.srt.plugins.hook_registry.HookType",
        "the kinds of hooks",
        attributes=tuple(sorted({hook.kind for hook in HOOKS})),
    ),
    Requirement(
        "sglang.srt.plugins.hook_registry.HookRegistry._apply_target",
        "installs a hook over whatever is there",
        parameters=("target", "hooks"),
    ),
)

SCHEDULING = (
    Requirement(
        SCHEDULER,
        "the toggle is attached to its worker",
        attributes=names(
            "model_worker enable_overlap future_map waiting_queue running_batch "
            "max_running_requests tp_group"
        ),
    ),
    Requirement(
        "sglang.srt.managers.schedule_batch.Req",
        "plain steps are taken out of a request's statistics",
        attributes=names(
            "spec_verify_ct spec_correct_drafts_histogram is_retracted finished sampling_params "
            "origin_input_ids output_ids"
        ),
    ),
    Requirement(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        "tokens past a request's last are not counted",
        attributes=("max_new_tokens",),
    ),
)

FORWARDING = (
    Requirement(
        EAGLE_WORKER,
        "what the plain step and the draft sync reach",
        attributes=names("target_worker draft_worker req_to_token_pool device topk server_args"),
    ),
    Requirement(
        DRAFT_WORKER,
        "what the draft sync reaches",
        attributes=names(
            "draft_runner cuda_graph_runner_for_draft_extend speculative_num_draft_tokens "
            "speculative_num_steps _draft_extend_for_prefill"
        ),
    ),
    Requirement(
        f"{DRAFT_WORKER}._draft_extend_for_decode",
        "its width is that of the draft worker, and its input the batch and the result",
        parameters=("batch", "batch_result"),
        contains=(
            "self.speculative_num_draft_tokens",
            "batch_result.next_token_ids",
            "batch_result.accept_lens",
            "batch_result.logits_output.hidden_states",
            "batch_result.next_draft_input",
        ),
    ),
    Requirement(
        f"{DRAFT_WORKER}._draft_extend_for_prefill",
        "a prefill that plain steps follow writes the draft's KV only",
        parameters=("batch", "target_hidden_states", "next_token_ids", "mm_input_embeds"),
    ),
    Requirement(
        "sglang.srt.models.llama_eagle3.LlamaModel.forward",
        "the draft reads the target's hidden states from the speculative input",
        contains=("forward_batch.spec_info.hidden_states",),
    ),
    Requirement(
        "sglang.srt.layers.linear.QKVParallelLinear",
        "the draft's keys and values are the rows of its weight behind the queries",
        attributes=("q_proj_shard_size",),
    ),
    Requirement(
        f"{MODEL_RUNNER}.sample",
        "samples a plain step",
        parameters=("logits_output", "forward_batch"),
    ),
    Requirement(
        MODEL_RUNNER,
        "what native decode graphs replace",
        attributes=names(
            "spec_algorithm attn_backend device gpu_id model_config forward "
            "token_to_kv_pool req_to_token_pool"
        ),
    ),
    Requirement(
        f"{MODEL_RUNNER}._get_attention_backend",
        "builds the attention state of native decode graphs",
    ),
    Requirement(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        "fields that a draft-extend sets",
        attributes=("return_logprob", "extend_seq_lens_cpu"),
    ),
    Requirement(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode",
        "plain steps are decode batches",
        attributes=("is_decode",),
    ),
    Requirement(
        "sglang.srt.layers.logits_processor.LogitsProcessorOutput",
        "what a plain step reads of its forward",
        attributes=("next_token_logits", "next_token_logprobs", "hidden_states"),
    ),
    Requirement(
        "sglang.srt.speculative.eagle_info.EagleDraftInput",
        "the state that a round starts from",
        attributes=("bonus_tokens", "topk_p", "topk_index", "hidden_states", "future_indices"),
    ),
)

ACCOUNTING = (
    Requirement(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "what a client's accept length is made of",
        contains=(
            "recv_obj.spec_verify_ct[i]",
            "recv_obj.spec_num_correct_drafts[i]",
            "'spec_accept_length'",
        ),
    ),
)

# Modules of ours that only run on releases without a worker batch: the profiler of ``auto``.
NEWER_ONLY = ("profiling.py", "synthetic_batch.py")


def requirements(source: Source) -> list[Requirement]:
    """All that a release must hold, one entry for each place: hooks, uses, and assumptions."""
    hooked = [
        Requirement(h.target, h.why, h.kind.lower(), h.parameters, where=h.where) for h in HOOKS
    ]
    assumed = (*LOADING, *SCHEDULING, *FORWARDING, *ACCOUNTING)
    of_a_generation = (*SCHEDULE_BATCH_ASSUMPTIONS, *WORKER_BATCH_ASSUMPTIONS)
    return needed(source, (*hooked, *_uses(), *assumed, *of_a_generation))


def _uses() -> list[Requirement]:
    """What our own source takes from the host."""
    uses = []
    package = files("spec_toggle")
    for folder in (package, package / "compat"):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".py"):
                where = SCHEDULE_BATCH if entry.name in NEWER_ONLY else None
                uses += uses_of_host(entry.name, entry.read_text(encoding="utf-8"), where)
    return uses
