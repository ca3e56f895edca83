// Part of the API; here it comes as a whole.
#pragma once
#include "kernel_operator.h"
