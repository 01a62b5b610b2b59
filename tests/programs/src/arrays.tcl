set x 42
for {set i 0} {$i < 100000} {incr i} {
    set x [expr {($x * 1103515245 + 12345) & 0x7fffffff}]
    lappend a([expr {$x % 5003}]) $i
    append text "room $x "
}
set sum 0
foreach {k v} [array get a] { incr sum [expr {$k * [llength $v]}] }
puts "[array size a] $sum [string length $text] [lindex [lsort -integer [array names a]] 777]"
