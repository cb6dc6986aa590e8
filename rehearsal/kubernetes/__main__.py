"""`python -m orch.rehearsal.kubernetes FOLDER`"""

import sys

from orch.rehearsal.kubernetes.service import main

main(sys.argv[1:])
