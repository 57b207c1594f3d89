setlocal commentstring=#\ %s expandtab shiftwidth=4
