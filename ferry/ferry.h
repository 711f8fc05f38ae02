// The transfer surface: endpoints, regions, connections, operations, and the settings, errors and
// deadlines that they take and return. Copies (ferry/copy) and ops (ferry/kernels.h) are included
// on their own.
#pragma once
#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/core/version.h"
#include "ferry/transfer/connection.h"
#include "ferry/transfer/counters.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/operation.h"
#include "ferry/transfer/options.h"
#include "ferry/transfer/region.h"
