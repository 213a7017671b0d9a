// Decoders: from the strings of tokens back to text, one token at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "larder/text/decode_step.h"

namespace larder {

// The decoder of a tokenizer.json: a chain of steps. Immutable; any number of threads may start
// runs of it. A whole decode is a run that is fed everything and then finished, so a stream and a
// whole decode cannot differ.
//
// Supported: Sequence, ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace; without a decoder
// tokens are joined by spaces.
//
// Bytes that are no UTF-8 become U+FFFD: under ByteLevel one for each maximal broken sequence,
// under ByteFallback one for each byte, both as the library that defined the format does. In one
// thing ByteFallback differs from it: there a run of byte tokens with one broken byte loses all its
// characters, although a stream has handed them out by then. Here whole characters stay.
class Decoder {
 public:
  // One text being decoded. Move-only, for one thread at a time, must not outlive the decoder.
  // Holds at most three bytes, or the characters that a Strip may have to cut at the end; only a
  // chain that cannot go piece by piece (a Replace after a Fuse) keeps its text until the end.
  class Run {
   public:
    // Appends to `out` the text that is certain now: whole characters.
    void take(std::string_view token, std::string& out);
    // Appends the rest. The run is over.
    void finish(std::string& out);
    // If the text ended now, it would end in a character cut short.
    bool has_half_character() const;

   private:
    friend class Decoder;
    class Next;
    std::vector<std::unique_ptr<DecodeStep>> steps_;
  };

  // Reads "decoder". `what` begins every error.
  Decoder(const Json* spec, const std::string& what);
  Run start() const;

 private:
  std::vector<StepMaker> makers_;
};

}  // namespace larder
