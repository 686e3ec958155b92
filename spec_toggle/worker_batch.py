"""What is required of releases whose scheduler makes a batch for the worker of each iteration."""

from __future__ import annotations

import dataclasses

from spec_toggle.contract import WORKER_BATCH, Requirement, names
from spec_toggle.hooks import EAGLE_WORKER_V1, SCHEDULE_BATCH_CLASS, SCHEDULER
from spec_toggle.support import REFUSALS

SRT = "sglang.srt"
MODEL_RUNNER = f"{SRT}.model_executor.model_runner.ModelRunner"
# Settings that came later.
LATER = ("attn_dp_size", "dcp_size", "speculative_use_rejection_sampling")


_LOADING = (
    Requirement(
        f"{SRT}.server_args.ServerArgs",
        "server arguments that are refused; one that is renamed would pass unseen",
        attributes=(
            *(refusal.field for refusal in REFUSALS if refusal.field not in LATER),
            *("max_running_requests", "disable_cuda_graph", "get_model_config"),
        ),
    ),
    Requirement(
        f"{SRT}.configs.model_config.ModelConfig",
        "targets that are refused",
        attributes=("hf_config", "hf_text_config", "dtype"),
    ),
)

_SCHEDULING = (
    Requirement(
        f"{SCHEDULER}.run_batch",
        "relays the draft state and its lengths; without overlap the worker gets its own batch",
        contains=(
            "worker_batch_or_batch = batch.get_model_worker_batch()",
            "worker_batch_or_batch = batch\n",
            "self.future_map.resolve_future(model_worker_batch)",
            "self.future_map.store_to_map(future_indices, batch_result)",
            "batch.seq_lens = batch_result.next_draft_input.new_seq_lens",
        ),
    ),
    Requirement(
        f"{SCHEDULER}.update_running_batch",
        "prepares the batch once its size is final, and filters it by what a round left",
        contains=("batch.filter_batch(v1_spec_info_filtered=True)", "batch.prepare_for_decode()"),
    ),
    Requirement(
        f"{SRT}.managers.overlap_utils.FutureMap.store_to_map_for_new_batch",
        "relays the whole draft input, so that a plain step must pass all of it on",
        contains=(
            "self.topk_p_buf[intv] = draft_input.topk_p",
            "self.bonus_tokens_buf[intv] = draft_input.bonus_tokens",
            "self.new_seq_lens_buf[intv] = draft_input.new_seq_lens",
            "self.hidden_states_buf[intv] = draft_input.hidden_states",
        ),
    ),
    Requirement(
        f"{SCHEDULE_BATCH_CLASS}.prepare_for_decode",
        "reserves slots with overlap; the ordinary path takes its input from the output ids",
        contains=(
            "draft_input.prepare_for_decode(self)",
            "self.input_ids = self.output_ids.to(torch.int64)",
            "self.out_cache_loc = alloc_for_decode(self, token_per_req=1)",
            "self.seq_lens_cpu.add_(1)",
        ),
    ),
    Requirement(
        f"{SCHEDULE_BATCH_CLASS}.maybe_wait_verify_done",
        "waits for the event before lengths are used",
        contains=("draft_input.verify_done.synchronize()",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_info_v2.EagleDraftInputV2Mixin.prepare_for_decode",
        "reserves slots past the committed length, and a plain step takes the first",
        contains=("r.kv_committed_len + double_alloc", "r.kv_committed_len += 1"),
    ),
    Requirement(
        SCHEDULE_BATCH_CLASS,
        "fields that a plain step replaces or reads",
        attributes=names(
            "spec_info spec_algorithm forward_mode output_ids out_cache_loc seq_lens seq_lens_cpu "
            "seq_lens_sum req_pool_indices req_to_token_pool extend_lens prefix_lens reqs "
            "get_model_worker_batch token_to_kv_pool_allocator forward_iter"
        ),
    ),
    Requirement(
        WORKER_BATCH.target,
        "fields that a plain step and a draft-extend replace or read",
        attributes=names(
            "spec_info spec_algorithm forward_mode input_ids out_cache_loc seq_lens seq_lens_cpu "
            "seq_lens_sum req_pool_indices extend_seq_lens extend_prefix_lens extend_num_tokens "
            "extend_logprob_start_lens reqs has_grammar return_logprob sampling_info "
            "capture_hidden_mode return_hidden_states_before_norm"
        ),
    ),
    Requirement(
        f"{SRT}.managers.schedule_batch.Req",
        "where its KV is",
        attributes=("req_pool_idx", "kv_committed_len"),
    ),
)

_FORWARDING = (
    Requirement(
        EAGLE_WORKER_V1,
        "what the plain step and the draft sync reach",
        attributes=names(
            "target_worker req_to_token_pool device topk server_args draft_model_runner "
            "draft_tp_context eagle_use_aux_hidden_state"
        ),
    ),
    Requirement(
        f"{EAGLE_WORKER_V1}.forward_draft_extend",
        "extends the draft by a prompt, or by one token of each request, and leaves the draft "
        "input on the batch",
        parameters=("batch", "hidden_states", "next_token_ids", "seq_lens_cpu", "mm_input_embeds"),
        contains=(
            "batch.spec_info = EagleDraftInput(",
            "batch.spec_info.prepare_for_extend(batch)",
            "self.capture_for_decode(logits_output, forward_batch.spec_info)",
        ),
    ),
    Requirement(
        f"{EAGLE_WORKER_V1}.forward_batch_generation",
        "looks the draft's prefill up on itself in every call",
        contains=("self.forward_draft_extend(",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation",
        "looks the draft's prefill up on the draft worker in every call",
        contains=("self.draft_worker._draft_extend_for_prefill(",),
    ),
    Requirement(
        f"{SCHEDULER}.maybe_init_draft_worker",
        "the scheduler holds its EAGLE worker, which is told before memory is released",
        contains=("self.draft_worker = DraftWorkerClass(",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_worker_v2.EagleDraftWorker",
        "its process groups",
        attributes=("draft_tp_context",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_decode",
        "its shape follows both widths of the draft worker",
        contains=("self.speculative_num_steps + 1",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_info_v2.EagleDraftInputV2Mixin."
        "prepare_for_extend_to_fill_draft_kvcache",
        "fields that a draft-extend rebinds",
        contains=("batch.extend_seq_lens =", "batch.seq_lens_cpu =", "batch.capture_hidden_mode ="),
    ),
    Requirement(
        f"{SRT}.managers.tp_worker.TpModelWorker.forward_batch_generation",
        "forwards without sampling, or samples, and returns the aux hidden states",
        parameters=("model_worker_batch", "forward_batch", "is_verify"),
    ),
    Requirement(
        MODEL_RUNNER,
        "where graphs are held, and what is known of the target only here",
        attributes=("graph_runner", "mambaish_config"),
    ),
    Requirement(
        f"{SRT}.model_executor.cuda_graph_runner.CudaGraphRunner",
        "captures native decode graphs with aux hidden states as an output",
        parameters=("model_runner", "attn_backend"),
        attributes=("capture_hidden_mode", "capture_bs"),
        contains=("model_runner.spec_algorithm.is_speculative()", "self.capture_hidden_mode"),
    ),
    Requirement(
        f"{SRT}.model_executor.forward_batch_info.ForwardBatch",
        "holds the attention backend, and the pools",
        attributes=("attn_backend", "token_to_kv_pool", "req_to_token_pool"),
    ),
    Requirement(
        f"{SRT}.layers.radix_attention.RadixAttention.forward",
        "calls the attention backend of the batch",
        contains=("forward_batch.attn_backend.forward(",),
    ),
    Requirement(
        f"{SRT}.mem_cache.memory_pool.MHATokenToKVPool.set_kv_buffer",
        "stores keys and values in slots",
        parameters=("layer", "loc", "cache_k", "cache_v", "k_scale", "v_scale"),
    ),
    Requirement(
        f"{SRT}.mem_cache.allocator.TokenToKVPoolAllocator.clear",
        "KV slot 0 is nobody's: draft KV of slots that another request has taken goes there",
        contains=("torch.arange(1, self.size + 1",),
    ),
    Requirement(
        f"{SRT}.mem_cache.allocator.PagedTokenToKVPoolAllocator.clear",
        "KV page 0 is nobody's",
        contains=("torch.arange(1, self.num_pages + 1",),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_info.EagleDraftInput",
        "relays lengths, and the event that says they are known",
        attributes=("new_seq_lens", "verify_done", "hidden_size_for", "dtype_for"),
    ),
    Requirement(
        f"{SRT}.speculative.eagle_info.EagleDraftInput.filter_batch",
        "keeps the rows that it is told to",
        parameters=("new_indices", "has_been_filtered"),
    ),
)

_ACCOUNTING = (
    Requirement(
        f"{SCHEDULER}._resolve_spec_overlap_tokens",
        "counts a verify for each result, and reads accept lengths",
        contains=("result.accept_lens", "req.spec_verify_ct += 1", "stride = result.speculative"),
    ),
    Requirement(
        f"{SCHEDULER}.process_batch_result_decode",
        "gives an ordinary result's tokens to the requests",
        contains=(
            "if batch.spec_algorithm.is_none() or batch.is_spec_v2",
            "req.output_ids.append(next_token_id)",
            "req.check_finished(new_accepted_len)",
        ),
    ),
    Requirement(
        SCHEDULER,
        "rounds of a logging interval, and the label of its line",
        attributes=names(
            "spec_num_forward_ct spec_total_num_forward_ct spec_num_accept_tokens "
            "spec_total_num_accept_tokens _graph_backend_label is_stats_logging_rank"
        ),
    ),
)

WORKER_BATCH_ASSUMPTIONS = tuple(
    dataclasses.replace(requirement, where=WORKER_BATCH)
    for requirement in (*_LOADING, *_SCHEDULING, *_FORWARDING, *_ACCOUNTING)
)
