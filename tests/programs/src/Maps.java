import java.util.*;

public class Maps {
    public static void main(String[] arguments) {
        int n = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 150000;
        Map<Integer, List<String>> map = new TreeMap<>();
        int x = 42;
        for (int i = 0; i < n; i++) {
            x = x * 1103515245 + 12345;
            map.computeIfAbsent(x >>> 16, k -> new ArrayList<>()).add("room " + i);
        }
        System.gc();
        long sum = 0;
        for (var e : map.entrySet()) for (String s : e.getValue()) sum = sum * 31 + s.hashCode() + e.getKey();
        long[] sorted = new Random(5).longs(n * 4).toArray();
        Arrays.parallelSort(sorted);
        System.out.println(map.size() + " " + sum + " " + sorted[777]);
    }
}
