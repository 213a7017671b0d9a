// A line chart as SVG text, drawn without scripts or fonts of its own.
#pragma once

#include <string>
#include <vector>

namespace larder::tools {

struct ChartLine {
  std::string name;
  std::vector<double> x, y;  // as many of each
};

struct Chart {
  std::string title, y_label;
  bool log_y = false;  // else linear from 0
  std::vector<ChartLine> lines;
  std::string (*format)(double y) = nullptr;  // of ticks and tooltips
};

// x is drawn by its logarithm, with a tick at every value that a line has. Needs: a line with a
// point, all values above 0. Lines take the colours chart_color(0), (1), ...
std::string draw(const Chart& chart);
// A CSS colour; they repeat after ten.
std::string chart_color(size_t line);

// Text for HTML and SVG.
std::string escape_html(const std::string& text);

}  // namespace larder::tools
