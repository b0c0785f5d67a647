#include "bellows/optim/strong_wolfe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace bellows::optim {
namespace {

constexpr double kDecrease = 1e-4;  // c1
constexpr double kCurvature = 0.9;  // c2

// Where the cubic through two points and their slopes is least, within the bounds.
double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high) {
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double at =
      a.length <= b.length
          ? b.length - (b.length - a.length) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
          : a.length - (a.length - b.length) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2));
  return std::min(std::max(at, low), high);
}

struct Search {
  const LineSearch& given;
  const LinePoint& start;
  std::vector<LinePoint> bracket = {};  // one point: it is the answer
  int64_t iterations = 0;
  int64_t evaluations = 0;
  bool done = false;

  LinePoint evaluate(double length) {
    ++evaluations;
    return given.evaluate(length);
  }
  bool fell_too_little(const LinePoint& point) const {
    return point.loss > start.loss + kDecrease * point.length * start.slope;
  }
  bool is_flat(const LinePoint& point) const {
    return std::abs(point.slope) <= -kCurvature * start.slope;
  }

  // Grows the step until two points have a good one between them.
  void find_bracket(double length) {
    LinePoint previous = start;
    LinePoint point = evaluate(length);
    for (; iterations < given.most_iterations; ++iterations) {
      if (fell_too_little(point) || (iterations > 1 && point.loss >= previous.loss)) {
        bracket = {previous, point};
        return;
      }
      if (is_flat(point)) {
        bracket = {point};
        done = true;
        return;
      }
      if (point.slope >= 0) {
        bracket = {previous, point};
        return;
      }
      const double least = point.length + 0.01 * (point.length - previous.length);
      const double next = cubic_minimum(previous, point, least, point.length * 10);
      previous = point;
      point = evaluate(next);
    }
    bracket = {start, point};
  }

  // A place in the bracket, away from its ends where two tries in a row came too close to them.
  double next_length(bool& close) const {
    const auto [low, high] = std::minmax(bracket[0].length, bracket[1].length);
    double length = cubic_minimum(bracket[0], bracket[1], low, high);
    const double margin = 0.1 * (high - low);
    if (!(std::min(high - length, length - low) < margin)) {
      close = false;
    } else if (close || length >= high || length <= low) {
      length = std::abs(length - high) < std::abs(length - low) ? high - margin : low + margin;
      close = false;
    } else {
      close = true;
    }
    return length;
  }

  LinePoint shrink_bracket() {
    size_t low = bracket.front().loss <= bracket.back().loss ? 0 : bracket.size() - 1;
    size_t high = bracket.size() - 1 - low;
    bool close = false;
    while (!done && iterations < given.most_iterations) {
      if (std::abs(bracket[1].length - bracket[0].length) * given.largest_entry <
          given.tolerance_change) {
        break;
      }
      const LinePoint point = evaluate(next_length(close));
      ++iterations;
      if (fell_too_little(point) || point.loss >= bracket[low].loss) {
        bracket[high] = point;
        low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
        high = 1 - low;
        continue;
      }
      if (is_flat(point)) {
        done = true;
      } else if (point.slope * (bracket[high].length - bracket[low].length) >= 0) {
        bracket[high] = bracket[low];
      }
      bracket[low] = point;
    }
    return bracket[low];
  }
};

}  // namespace

LinePoint strong_wolfe(const LineSearch& given, const LinePoint& start, double length,
                       int64_t& evaluations) {
  Search search{.given = given, .start = start};
  search.find_bracket(length);
  const LinePoint found = search.shrink_bracket();
  evaluations = search.evaluations;
  return found;
}

}  // namespace bellows::optim
