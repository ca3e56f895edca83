// Part of the host API; here it comes as a whole.
#pragma once
#include "acl/acl.h"
