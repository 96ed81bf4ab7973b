"The kernel that has Colab's shell."

from google.colab._shell import Shell
from ipykernel.ipkernel import IPythonKernel
from traitlets import Type


class Kernel(IPythonKernel):
    shell_class = Type(Shell)
