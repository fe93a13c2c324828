// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/endpoint_internal.h"

#include <utility>

#include "gradwire/backend/ucx/active_message_internal.h"

namespace gradwire::ucx {

ucs_status_t Endpoint::connect(ucp_worker_h worker, const std::string& address, std::atomic<bool>& attention) {
  attention_ = &attention;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Endpoint::on_failure;
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker, &params, &endpoint_);
  if (status != UCS_OK) endpoint_ = nullptr;
  return status;
}

ucs_status_t Endpoint::send_at_once(const Envelope& envelope, std::span<const std::byte> payload) const {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  // UCX's macro evaluates its argument twice.
  void* const request =
      ucp_am_send_nbx(endpoint_, kActiveMessage, &envelope, sizeof(envelope), payload.data(), payload.size(), &param);
  return UCS_PTR_STATUS(request);
}

void* Endpoint::close() noexcept {
  if (endpoint_ == nullptr) return nullptr;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* const request = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  return UCS_PTR_IS_ERR(request) ? nullptr : request;
}

// May be called by UCX on a thread of its own.
void Endpoint::on_failure(void* self, ucp_ep_h, ucs_status_t status) {
  Endpoint& endpoint = *static_cast<Endpoint*>(self);
  endpoint.failure_.store(status, std::memory_order_release);
  endpoint.attention_->store(true, std::memory_order_release);
}

void ClosingEndpoints::sweep() noexcept {
  std::erase_if(requests_, [](void* request) {
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

void ClosingEndpoints::finish(ucp_worker_h worker) noexcept {
  for (void* const request : requests_) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    ucp_request_free(request);
  }
  requests_.clear();
}

}  // namespace gradwire::ucx
