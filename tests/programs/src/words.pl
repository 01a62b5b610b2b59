my (%n, @all);
while (<>) { for my $w (split) { $n{$w}++; push @all, $w if $. % 3 == 0 } }
my $text = join ' ', @all;
my $count = () = $text =~ /(\w)\w*\1/g;
my @sorted = sort { $n{$b} <=> $n{$a} || $a cmp $b } keys %n;
print scalar(@sorted), " $count $sorted[0] $n{$sorted[0]} $sorted[1000] ", length($text), "\n";
