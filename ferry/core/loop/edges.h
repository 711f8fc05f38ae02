// The transitions of a state machine, as a table that a reader sees on one screen.
#pragma once
#include <algorithm>
#include <iterator>

namespace ferry {

template <class State>
struct Edge {
  State from;
  State to;
};

template <class Edges, class State>
bool HasEdge(const Edges& edges, State from, State to) {
  return std::any_of(std::begin(edges), std::end(edges),
                     [&](const auto& edge) { return edge.from == from && edge.to == to; });
}

}  // namespace ferry
