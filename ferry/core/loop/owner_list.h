// An intrusive doubly linked list.
#pragma once
#include "ferry/core/check.h"

namespace ferry {

// A doubly linked list whose nodes are members of their owners: it allocates nothing, and a node
// unlinks itself in constant time without knowing the list. One thread at a time.
template <class T>
class OwnerList {
 public:
  class Node {
   public:
    explicit Node(T* owner) noexcept : owner_(owner) {}
    ~Node() { Unlink(); }
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    bool linked() const noexcept { return next_ != this; }
    void Unlink() noexcept {
      previous_->next_ = next_;
      next_->previous_ = previous_;
      previous_ = next_ = this;
    }

   private:
    friend class OwnerList;
    T* const owner_;
    Node* previous_ = this;
    Node* next_ = this;
  };

  OwnerList() = default;
  // Unlinks the remaining nodes, which may outlive the list.
  ~OwnerList() { Clear(); }
  OwnerList(const OwnerList&) = delete;
  OwnerList& operator=(const OwnerList&) = delete;

  bool empty() const noexcept { return !head_.linked(); }
  T* front() const noexcept { return empty() ? nullptr : head_.next_->owner_; }

  // `node` must not be in a list.
  void PushBack(Node* node) noexcept {
    FERRY_CHECK(!node->linked());
    node->previous_ = head_.previous_;
    node->next_ = &head_;
    head_.previous_->next_ = node;
    head_.previous_ = node;
  }
  T* PopFront() noexcept {
    Node* const first = head_.next_;
    first->Unlink();
    return first->owner_;
  }
  // Takes all nodes of `other`, leaving it empty. This list must be empty.
  void TakeAll(OwnerList* other) noexcept {
    FERRY_CHECK(empty());
    if (other->empty()) return;
    head_.next_ = other->head_.next_;
    head_.previous_ = other->head_.previous_;
    head_.next_->previous_ = &head_;
    head_.previous_->next_ = &head_;
    other->head_.next_ = other->head_.previous_ = &other->head_;
  }
  void Clear() noexcept {
    while (!empty()) (void)PopFront();
  }
  // `visit(T*)` must not add or remove nodes.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (Node* node = head_.next_; node != &head_; node = node->next_) visit(node->owner_);
  }

 private:
  Node head_{nullptr};
};

}  // namespace ferry
