autocmd BufRead,BufNewFile *.rnn setfiletype rnn
