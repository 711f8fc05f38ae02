// An intrusive doubly linked list.
#pragma once
#include "ferry/core/check.h"

namespace ferry {

// A doubly linked list of nodes that are members of their owners: nothing is allocated, and a node
// leaves in constant time without knowing the list. One thread at a time.
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
  // Nodes that are left may outlive the list.
  ~OwnerList() { Clear(); }
  OwnerList(const OwnerList&) = delete;
  OwnerList& operator=(const OwnerList&) = delete;

  bool empty() const noexcept { return !head_.linked(); }
  T* front() const noexcept { return empty() ? nullptr : head_.next_->owner_; }

  // `node` is in no list.
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
  // Takes all of `other`, which is empty afterwards. This list is empty before.
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
  // `visit(T*)` adds and removes nothing.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (Node* node = head_.next_; node != &head_; node = node->next_) visit(node->owner_);
  }

 private:
  Node head_{nullptr};
};

}  // namespace ferry
