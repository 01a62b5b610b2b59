count = Hash.new(0)
lines = File.readlines(ARGV[0])
lines.each { |line| line.split.each { |word| count[word] += 1 } }
kept = lines.flat_map { |line| line.split.map(&:reverse) }
GC.start
puts [count.size, count.sort_by { |w, n| [-n, w] }.first(5).inspect, kept.sort[1234], kept.uniq.size].join(' ')
