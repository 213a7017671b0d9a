// Tells the events of an engine and its pool, where somebody wants to know them. Only the engine's
// own files include this.
#pragma once

#include <map>
#include <vector>

#include "larder/generate/engine_sample.h"

namespace larder {

// The pool says which blocks are taken and given back; who has them is read off the rows: when a
// sample begins with blocks of others, and for all others at the end of a step. So layers and
// scheduler know nothing of events.
class Engine::Recorder final : public PoolEvents {
 public:
  // Both must outlive this.
  Recorder(Engine& engine, PoolEvents& sink);
  ~Recorder() override;

  void on_event(const PoolEvent& event) noexcept override;  // of the pool and the prefix cache
  void begun(const Sample& sample);
  // Its row holds `tokens` that it did not compute: kHit, kShare, kSwapIn; or did: kSwapOut.
  void tell_row(PoolEventKind kind, const Sample& sample, int64_t tokens);
  // It is about to lose its row: kPreempt, kEnd.
  void gives_back(PoolEventKind kind, const Sample& sample, std::string_view reason = {});
  void end_step();

 private:
  // A block from when it was taken until it is free.
  struct Held {
    int32_t number;
    int64_t life;
    auto operator<=>(const Held&) const = default;
  };
  using List = std::vector<Held>;
  PoolEvent of(PoolEventKind kind, const Sample& sample, int64_t count = 0) const;
  void read_row(const Sample& sample);
  bool alive(const Held& held) const {
    return lives_[static_cast<size_t>(held.number)] == held.life;
  }
  void tell_difference(PoolEvent event, const List& from, const List& without);

  Engine& engine_;
  PoolEvents& sink_;
  PagedBlocks* const pool_;       // null: the cache has none
  std::vector<int64_t> lives_;    // by block: how often it has been free
  std::map<int64_t, List> told_;  // by sample: what it has, as far as that was told
  List row_;                      // what read_row() found, in order
  std::vector<int32_t> numbers_;  // of the event that is told
};

}  // namespace larder
