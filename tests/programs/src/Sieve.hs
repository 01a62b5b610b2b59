import qualified Data.Map.Strict as M

step :: Int -> Int
step x = (x * 1103515245 + 12345) `mod` 2147483648

main :: IO ()
main = do
  let xs = take 150000 (iterate step 42)
      m = M.fromListWith (+) [(x `mod` 50021, x) | x <- xs]
  print (M.size m, M.foldl' (+) 0 m)
