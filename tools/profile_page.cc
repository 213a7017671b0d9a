#include "tools/profile_page.h"

#include <algorithm>

#include "larder/base/str.h"
#include "tools/svg_chart.h"

namespace larder::tools {
namespace {

constexpr const char* kStyle =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}"
    "svg{width:100%;height:auto;font:13px system-ui,sans-serif;fill:currentColor}"
    ".grid{stroke:#bbb;stroke-width:.6;fill:none}.line{stroke-width:2.4;fill:none}"
    "table{border-collapse:collapse;width:100%;font-size:.9rem}"
    "th,td{padding:.3rem .6rem;border-bottom:1px solid #ccc;text-align:right}"
    "th:first-child,td:first-child{text-align:left}"
    ".key{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;list-style:none;padding:0}"
    ".key span{display:inline-block;width:1rem;height:.8rem;margin-right:.4rem}"
    "code{overflow-wrap:anywhere}"
    "@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}"
    ".grid{stroke:#555}th,td{border-color:#444}}";

std::string rate_text(double rate) { return fixed(rate, rate > 0 && rate < 10 ? 1 : 0); }

std::vector<const ProfileKind*> measured(const Profile& profile) {
  std::vector<const ProfileKind*> kinds;
  for (const ProfileKind& kind : profile.kinds)
    if (!kind.points.empty()) kinds.push_back(&kind);
  return kinds;
}

// The longest context that every measured kind reached; 0 for none.
int64_t common_context(const Profile& profile) {
  int64_t context = 0;
  bool first = true;
  for (const ProfileKind* kind : measured(profile)) {
    const int64_t reached = kind->points.back().context;
    context = first ? reached : std::min(context, reached);
    first = false;
  }
  return context;
}

const ProfilePoint& point_at(const ProfileKind& kind, int64_t context) {
  return *std::ranges::find(kind.points, context, &ProfilePoint::context);
}

Chart chart(const Profile& profile, const char* title, const char* label, bool log_y,
            double ProfilePoint::*value, std::string (*format)(double)) {
  Chart chart{title, label, log_y, {}, format};
  for (const ProfileKind* kind : measured(profile)) {
    ChartLine line{kind->name(), {}, {}};
    for (const ProfilePoint& point : kind->points) {
      line.x.push_back(static_cast<double>(point.context));
      line.y.push_back(std::max(point.*value, 1e-9));
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

std::string key(const Profile& profile) {
  std::string html = "<ul class=\"key\">\n";
  size_t index = 0;
  for (const ProfileKind* kind : measured(profile))
    html += str("<li><span style=\"background:", chart_color(index++), "\"></span><code>",
                escape_html(kind->name()), "</code></li>\n");
  return html + "</ul>\n";
}

std::string table(const Profile& profile, int64_t context) {
  std::string html = str("<table><tr><th>cache at ", context,
                         " tokens</th><th>KV in memory</th><th>peak</th><th>prefill, tokens/s</th>"
                         "<th>decode, tokens/s</th><th>gives dynamic's tokens</th></tr>\n");
  for (const ProfileKind& kind : profile.kinds) {
    html += str("<tr><td><code>", escape_html(kind.name()), "</code></td>");
    if (kind.points.empty()) {
      html += str("<td colspan=\"5\">not run: ", escape_html(kind.refused), "</td></tr>\n");
      continue;
    }
    const ProfilePoint& point = point_at(kind, context);
    html += str("<td>", human_bytes(point.kv_bytes), "</td><td>", human_bytes(point.kv_peak_bytes),
                "</td><td>", rate_text(point.prefill_tokens_per_second), "</td><td>",
                rate_text(point.decode_tokens_per_second), "</td><td>",
                kind.lossless ? "yes" : "nearly", "</td></tr>\n");
  }
  return html + "</table>\n";
}

std::string choice(const ProfileKind& kind, const ProfileKind& fastest, int64_t context) {
  const ProfilePoint &point = point_at(kind, context), &best = point_at(fastest, context);
  return str(
      "<li><code>", escape_html(kind.name()), "</code>: ", human_bytes(point.kv_bytes),
      " of KV at ", rate_text(point.decode_tokens_per_second), " tokens/s",
      &kind == &fastest
          ? ""
          : str(" (", fixed(100 * point.kv_bytes / best.kv_bytes, 0), " % of the memory and ",
                fixed(100 * point.decode_tokens_per_second / best.decode_tokens_per_second, 0),
                " % of the speed of the first)"),
      "</li>\n");
}

std::string guide(const Profile& profile, int64_t context) {
  std::string html = str("<h2>Which one</h2>\n<p>At ", context,
                         " tokens, take the first of these whose memory you have. Every other kind "
                         "was both larger and slower than one of them.</p>\n");
  for (const bool lossless : {true, false}) {
    const auto best = best_kinds(profile, lossless);
    if (best.empty()) continue;
    html += lossless ? "<p>With the tokens of the dynamic cache:</p>\n<ol>\n"
                     : "<p>Where rounded keys and values will do:</p>\n<ol>\n";
    for (const ProfileKind* kind : best) html += choice(*kind, *best.front(), context);
    html += "</ol>\n";
  }
  return html;
}

}  // namespace

std::vector<const ProfileKind*> best_kinds(const Profile& profile, bool lossless_only) {
  const int64_t context = common_context(profile);
  std::vector<const ProfileKind*> kinds = measured(profile), best;
  if (lossless_only) std::erase_if(kinds, [](const ProfileKind* kind) { return !kind->lossless; });
  std::ranges::stable_sort(kinds, [&](const ProfileKind* a, const ProfileKind* b) {
    return point_at(*a, context).decode_tokens_per_second >
           point_at(*b, context).decode_tokens_per_second;
  });
  for (const ProfileKind* kind : kinds) {
    const double bytes = point_at(*kind, context).kv_bytes;
    const bool smaller = std::ranges::all_of(
        best, [&](const ProfileKind* other) { return bytes < point_at(*other, context).kv_bytes; });
    if (smaller) best.push_back(kind);
  }
  return best;
}

Json profile_json(const Profile& profile) {
  Json kinds = Json::array();
  for (const ProfileKind& kind : profile.kinds) {
    Json points = Json::array();
    for (const ProfilePoint& point : kind.points)
      points.push_back({{"context", point.context},
                        {"kv_bytes", static_cast<int64_t>(point.kv_bytes)},
                        {"kv_peak_bytes", static_cast<int64_t>(point.kv_peak_bytes)},
                        {"prefill_tokens_per_second", point.prefill_tokens_per_second},
                        {"decode_tokens_per_second", point.decode_tokens_per_second}});
    Json entry = {{"cache", kind.cache},
                  {"cache_config", kind.config},
                  {"lossless", kind.lossless},
                  {"points", std::move(points)}};
    if (!kind.refused.empty()) entry["refused"] = kind.refused;
    kinds.push_back(std::move(entry));
  }
  return {{"model", profile.model},
          {"dtype", profile.dtype},
          {"cache_dtype", profile.cache_dtype},
          {"kernels", profile.kernels},
          {"threads", profile.threads},
          {"kinds", std::move(kinds)}};
}

std::string profile_html(const Profile& profile) {
  const int64_t context = common_context(profile);
  const std::string title = str("KV caches of ", escape_html(profile.model));
  std::string html =
      str("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>", title,
          "</title>\n<style>", kStyle, "</style>\n<h1>", title, "</h1>\n<p>", "Computed in ",
          profile.dtype, ", exact keys and values stored as ", profile.cache_dtype, ", kernel set ",
          escape_html(profile.kernels), ", threads: ", profile.threads, ".</p>\n");
  if (measured(profile).empty()) return html + "<p>No cache kind could run.</p>\n</html>\n";
  html += guide(profile, context) + key(profile);
  html += draw(chart(profile, "KV in memory", "bytes", true, &ProfilePoint::kv_bytes, human_bytes));
  html += draw(chart(profile, "Decode", "tokens a second", false,
                     &ProfilePoint::decode_tokens_per_second, rate_text));
  return html + table(profile, context) + "</html>\n";
}

}  // namespace larder::tools
