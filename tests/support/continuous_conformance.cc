#include "tests/support/continuous_conformance.h"

#include "larder/base/error.h"
#include "tests/support/engine_log.h"
#include "tests/support/paged_engine.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;

Request request_of(const Json& json) {
  Request request;
  request.prompt_ids = json.at("input_ids").get<Ids>();
  request.max_new_tokens = json.at("max_new_tokens");
  if (!json.at("eos_token_id").is_null())
    request.eos_token_ids = json.at("eos_token_id").get<Ids>();
  return request;
}

EngineOptions options_of(const Json& setting, SchedulerKind kind) {
  EngineOptions options;
  options.session.threads = 2;
  use_pool(options, setting.at("block_size"), setting.at("num_blocks"));
  options.scheduler.kind = kind;
  options.scheduler.max_tokens_per_step = setting.at("max_batch_tokens");
  return options;
}

}  // namespace

void check_continuous_case(const ConformanceCase& test, const std::shared_ptr<const Model>& model,
                           Allocator& allocator, Comparison& result) {
  const Json& requests = test.json().at("requests");
  for (const Json& setting : test.json().at("settings")) {
    for (const SchedulerKind kind : {SchedulerKind::kFifo, SchedulerKind::kPrefillFirst}) {
      Engine engine(model, options_of(setting, kind), allocator);
      EngineLog log;
      std::vector<int64_t> ids;
      for (const Json& request : requests)
        ids.push_back(engine.submit(log.watch(request_of(request))));
      while (engine.step()) engine.check_invariants();
      for (size_t i = 0; i < ids.size(); ++i) {
        const Ids& got = log.of(ids[i]).result.output_ids;
        const Ids wanted = requests[i].at("expected").get<Ids>();
        if (got != wanted)
          result.note(str(setting.dump(), " ", scheduler_name(kind), ", request ", i, ": got ",
                          join(got, " "), ", expected ", join(wanted, " ")));
      }
    }
  }
}

}  // namespace larder::test
