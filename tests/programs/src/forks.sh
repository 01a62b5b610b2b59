declare -A seen
text=$(seq 200000)
for ((i = 0; i < 200; i++)); do x=$(echo $((i * 7919 % 1009))); seen[$x]=${text:i * 50:20}; done
for i in $(seq 20000); do list+=("room $i"); done
echo ${#seen[@]} ${#list[@]} ${#text} "${seen[77]:-none}" ${list[777]} | tr '\n' ' '
echo
