from tests.support.hypothesis_profile import use_profile

use_profile()
