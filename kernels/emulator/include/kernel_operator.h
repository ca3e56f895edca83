// Ascend C on a CPU: what a kernel includes.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#ifndef __NPU_ARCH__
#error "compile Ascend C with `atbfn ascendc run` or `atbfn ascendc check`, which choose the chip"
#endif

#include "ascendc/copy.h"
#include "ascendc/cube.h"
#include "ascendc/standard.h"
#include "ascendc/system.h"
#include "ascendc/vector.h"
