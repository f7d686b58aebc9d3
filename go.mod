module github.com/pitonlock/piton

go 1.26
