#include "tools/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "larder/base/str.h"

namespace larder::tools {
namespace {

constexpr double kWidth = 720, kHeight = 380, kLeft = 84, kRight = 16, kTop = 34, kBottom = 44;

// Where values fall on the page.
struct Axes {
  explicit Axes(const Chart& chart) : log_y(chart.log_y) {
    for (const ChartLine& line : chart.lines) {
      xs.insert(line.x.begin(), line.x.end());
      for (const double y : line.y) least = std::min(least, y), most = std::max(most, y);
    }
    if (!log_y) least = 0;
    y_ticks = log_y ? log_ticks() : linear_ticks();
  }

  double x(double value) const {
    const double from = std::log2(*xs.begin()), to = std::log2(*xs.rbegin());
    const double share = to > from ? (std::log2(value) - from) / (to - from) : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double from = log_y ? std::log2(least) : least, to = log_y ? std::log2(most) : most;
    const double share = ((log_y ? std::log2(value) : value) - from) / std::max(to - from, 1e-12);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }

  std::set<double> xs;
  std::vector<double> y_ticks;

 private:
  // Powers of two around all values.
  std::vector<double> log_ticks() {
    const double from = std::floor(std::log2(least)), to = std::ceil(std::log2(most) + 1e-9);
    const double step = std::max(1.0, std::ceil((to - from) / 8));
    std::vector<double> ticks;
    for (double power = from; power <= to; power += step) ticks.push_back(std::exp2(power));
    least = ticks.front(), most = std::max(std::exp2(to), ticks.back());
    return ticks;
  }
  // About six round numbers from 0.
  std::vector<double> linear_ticks() {
    const double power = std::pow(10, std::floor(std::log10(most / 5)));
    double step = power;
    for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
      step = factor * power;
      if (most / step <= 6) break;
    }
    std::vector<double> ticks;
    for (double tick = 0; tick < most + step; tick += step) ticks.push_back(tick);
    most = ticks.back();
    return ticks;
  }
  bool log_y;
  double least = HUGE_VAL, most = 0;
};

std::string number(double value) { return fixed(value, 1); }

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return str("<text x=\"", number(x), "\" y=\"", number(y), "\" text-anchor=\"", anchor, "\">",
             escape_html(text), "</text>\n");
}

std::string grid(const Chart& chart, const Axes& axes) {
  std::string svg;
  for (const double tick : axes.y_ticks) {
    const double y = axes.y(tick);
    svg += str("<path class=\"grid\" d=\"M", number(kLeft), " ", number(y), "H",
               number(kWidth - kRight), "\"/>\n");
    svg += text_at(kLeft - 8, y + 4, "end", chart.format(tick));
  }
  for (const double x : axes.xs)
    svg += text_at(axes.x(x), kHeight - kBottom + 20, "middle", str(static_cast<int64_t>(x)));
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", "context, tokens");
  return svg + text_at(8, 18, "start", str(chart.title, ", ", chart.y_label));
}

std::string curve(const Chart& chart, const Axes& axes, size_t index) {
  const ChartLine& line = chart.lines[index];
  const std::string color = chart_color(index);
  std::string path, dots;
  for (size_t i = 0; i < line.x.size(); ++i) {
    const std::string x = number(axes.x(line.x[i])), y = number(axes.y(line.y[i]));
    path += str(i == 0 ? "M" : "L", x, " ", y);
    dots += str("<circle cx=\"", x, "\" cy=\"", y, "\" r=\"4\" fill=\"", color, "\"><title>",
                escape_html(line.name), ", ", static_cast<int64_t>(line.x[i]),
                " tokens: ", chart.format(line.y[i]), "</title></circle>\n");
  }
  // Dashes let an equal line below show through.
  return str("<path class=\"line\" stroke=\"", color, "\"",
             index % 2 == 1 ? " stroke-dasharray=\"9 6\"" : "", " d=\"", path, "\"/>\n", dots);
}

}  // namespace

// Colours that stay apart for readers who see few of them (after Okabe and Ito).
std::string chart_color(size_t line) {
  constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                  "#56b4e9", "#8c6bb1", "#7f7f7f", "#b2182b", "#4d9221"};
  return kColors[line % kColors.size()];
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string draw(const Chart& chart) {
  const Axes axes(chart);
  std::string svg = str("<svg viewBox=\"0 0 ", static_cast<int>(kWidth), " ",
                        static_cast<int>(kHeight), "\" role=\"img\">\n", grid(chart, axes));
  for (size_t i = 0; i < chart.lines.size(); ++i) svg += curve(chart, axes, i);
  return svg + "</svg>\n";
}

}  // namespace larder::tools
