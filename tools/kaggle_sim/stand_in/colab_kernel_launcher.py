"How Colab starts a kernel: ipykernel with its own shell."

from ipykernel.kernelapp import launch_new_instance

if __name__ == "__main__":
    launch_new_instance(kernel_class="google.colab._kernel.Kernel")
